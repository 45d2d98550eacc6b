"""Sphinx configuration of the site: pages in MyST Markdown, and docstrings of the package.

./dev docs runs Sphinx. RAGGEMM_PACKAGES is the path of site-packages in .venv.
"""

import os
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.path.append(os.environ["RAGGEMM_PACKAGES"])

import docstrings  # noqa: E402
import outside  # noqa: E402
import raggemm  # noqa: E402

project = "raggemm"
author = "the authors of raggemm"
copyright = f"{author}, Apache-2.0"
version = release = raggemm.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["requirements.txt"]

myst_heading_anchors = 4
highlight_language = "none"
default_role = "code"

autodoc_typehints = "none"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_theme = "sphinx_book_theme"
html_title = "raggemm"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "use_download_button": False,
    "use_fullscreen_button": False,
    "show_toc_level": 2,
    "home_page_in_toc": True,
    "navbar_persistent": [],  # No search button in the header, as the sidebar has a search.
}


def setup(app):
    docstrings.setup(app)
    outside.setup(app)
