"""The user's requirements: measured after any passes, and the passes that break them."""
