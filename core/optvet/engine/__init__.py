"""The engine: finds plugins, runs trials in worker processes, judges outputs, finds culprits."""
