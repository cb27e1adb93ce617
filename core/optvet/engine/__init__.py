"""What happens: discovery, sandbox, trial, oracle, localization."""
