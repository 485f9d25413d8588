"""The report: a page that shows which image serves which model."""
