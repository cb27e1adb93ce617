"""Known faults: their documents, and which of them a model may trigger."""
