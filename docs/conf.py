"""How the documentation becomes a site: `make docs`. Nothing of it is loaded from elsewhere when it is read."""

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
# As deep as any heading that a page links to; the anchors are those of the code hosts.
myst_heading_anchors = 4
# A picture in a terminal, a shell session, a header: not every block has a language that the highlighter knows.
suppress_warnings = ["misc.highlighting_failure"]
