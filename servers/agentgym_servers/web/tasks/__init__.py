"""Tasks on web sites, and scripts that solve them."""
