"""Sphinx's settings for the course's site; `make site` builds it."""

project = "Training with limited memory"
author = "The authors of limited-memory-lab"
copyright = ""

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["build"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}

html_theme = "furo"
html_title = project
html_static_path = ["_static"]
html_css_files = ["course.css"]
html_js_files = ["accessible.js"]
html_favicon = "_static/favicon.svg"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0072B2", "color-brand-content": "#0072B2"},
    "dark_css_variables": {"color-brand-primary": "#56B4E9", "color-brand-content": "#56B4E9"},
}

# The outputs are the stored ones: a reader sees what the course's own run showed.
nb_execution_mode = "off"
# Widgets run without a kernel and without a network: their scripts are copied beside the pages when the site is built.
nb_ipywidgets_js = {
    "vendor/require.js": {},
    "widgets.js": {},
    "vendor/embed-amd.js": {},
}
nb_render_text_lexer = "none"

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
# One file with its fonts inside: formulas are drawn without a network too.
mathjax_path = "vendor/tex-svg.js"

# Names in docstrings stand in single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_default_options = {"members": True, "show-inheritance": True}
