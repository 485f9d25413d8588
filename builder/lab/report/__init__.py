"""The page that shows which image serves which model."""
