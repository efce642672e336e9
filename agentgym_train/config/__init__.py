"""Configs: dataclasses whose fields are the keys of YAML files and the options of commands."""
