"""From a reference to a ``Model``: files found, read and checked, without running anything."""
