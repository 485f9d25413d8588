"""The page that shows what serves what."""
