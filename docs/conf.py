"""Sphinx: `make docs`."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from sphinx_tools import add_mathml, escape_shapes, fill_generated_pages, keep_figures, refresh_generated_pages

project = "metreg"
author = "The metreg developers"
release = version = version_of("metreg")
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery", "auto_gallery/*.ipynb", "**/sg_execution_times.rst"]
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types, many of other libraries

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"

html_theme = "furo"
html_title = f"metreg {version}"
html_show_sphinx = html_show_copyright = False
html_math_renderer = "mathml"
html_static_path = ["static"]
html_css_files = ["metreg.css"]
copybutton_exclude = ".linenos, .gp, .go"

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": r"\.py$",
    "image_scrapers": ("matplotlib", keep_figures),
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 10_000,
    "abort_on_example_error": True,
    "remove_config_comments": True,
    "capture_repr": (),
}
suppress_warnings = ["config.cache"]

# Links inside these pages are checked by every build: a missing one is a warning, and warnings are errors. Links to other
# sites are looked up only where METREG_CHECK_LINKS is set, so that a build without a network does not fail.
linkcheck_ignore = [] if os.environ.get("METREG_CHECK_LINKS") else [r"https?://"]
linkcheck_timeout = 10
linkcheck_retries = 2

doctest_global_setup = "import metreg"


def setup(app):
    add_mathml(app)
    app.connect("autodoc-process-docstring", escape_shapes)
    app.connect("source-read", fill_generated_pages)
    app.connect("env-get-outdated", refresh_generated_pages)
