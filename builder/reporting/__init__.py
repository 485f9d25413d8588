"""The page of a project: its data, made of files, and the HTML that shows them. No engine is asked, nothing fetched."""
