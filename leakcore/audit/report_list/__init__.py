"""The reports of a folder in one list: read, drawn and written as a page."""
