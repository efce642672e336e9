"""Our own web sites: a shop, a forum, a code host, an encyclopedia and a map."""
