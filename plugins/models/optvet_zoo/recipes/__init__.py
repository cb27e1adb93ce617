"""How the zoo's models were made; nothing here is needed to use them. See ``RECIPES.md``."""
