"""How a sweep stands on disk: journal, manifest, directory."""
