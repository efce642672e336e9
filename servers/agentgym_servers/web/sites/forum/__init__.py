"""The forum: boards, submissions with votes and threads of comments, and its tasks."""
