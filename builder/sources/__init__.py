"""The sources of software: git, pull requests, patches, wheels, Python packages, the Hub."""
