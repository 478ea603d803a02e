"""Sphinx configuration of the documentation site (`make docs`). The site loads nothing from elsewhere."""

from turnwire import __version__

project = "turnwire"
release = __version__
extensions = ["myst_parser"]
exclude_patterns = ["schema"]
html_theme = "furo"
html_title = f"turnwire {__version__}"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {"footer_icons": []}
html_show_copyright = False
nitpicky = True
# Depth of headings that get anchors, with the anchor names of code hosts.
myst_heading_anchors = 4
# Some blocks have a language that the highlighter does not know.
suppress_warnings = ["misc.highlighting_failure"]
