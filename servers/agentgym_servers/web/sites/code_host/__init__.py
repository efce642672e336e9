"""The code host: projects with issues, merge requests, commits and members, and its tasks."""
