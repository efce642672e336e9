"""Actions on web pages."""
