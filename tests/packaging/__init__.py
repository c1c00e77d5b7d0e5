"""What packaging/ and docs/deployment.md hold: units, container files, examples."""
