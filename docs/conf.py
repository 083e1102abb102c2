"""Sphinx: `make docs`."""

project = "metreg"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath"]
html_theme = "alabaster"
html_theme_options = {"description": "Register medical images with a learned, spatially varying metric"}
exclude_patterns = ["_build"]
autodoc_member_order = "bysource"


def setup(app):
    def escape(app, what, name, obj, options, lines):
        lines[:] = [line.replace("*S", r"\*S") for line in lines]

    app.connect("autodoc-process-docstring", escape)
