"""The only place that picks classes. `boxes` needs no torch; `training` does."""
