"""The environment: installed packages, plugins' libraries, the machine; templates of plugins."""
