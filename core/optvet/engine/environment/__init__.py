"""What optvet runs in: packages, plugins' libraries, the machine; and packages for new plugins."""
