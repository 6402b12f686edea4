"""
Sphinx configuration. `make docs` builds the site into build/docs; any warning is an error.

Pages are Markdown (MyST) that also reads well where it is not built. Parameters come from the docstrings.
"""

from pathlib import Path

import zoo_plugins

HERE = Path(__file__).parent

project = "zoo_plugins"
author = "zoo_plugins contributors"
version = release = zoo_plugins.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
# A results file without a title is what a benchmark script wrote beside its JSON; a page says what it means
exclude_patterns = [f"results/{path.name}" for path in HERE.glob("results/*.md") if not path.read_text().startswith("# ")]

html_theme = "furo"
html_title = f"zoo_plugins {release}"
html_copy_source = False

myst_heading_anchors = 4  # links to `page.md#heading`, as elsewhere; unknown ones are warnings
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True

# There is no inventory of other packages without a network: only our own names are looked up.
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r"(?!zoo_plugins\b).*"), (r"py:class", r".*\.Self\w+")]
