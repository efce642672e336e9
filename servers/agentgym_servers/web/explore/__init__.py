"""The embedded sites in a person's own browser, with a task's goal beside the page."""
