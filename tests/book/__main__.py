"""`python -m tests.book` (`make pages`) writes what is made of the source: whole pages of docs/, tables in others, and
a picture.
"""

from tests.book.markdown import DOCS
from tests.book.pages import MADE, old

for name, make in MADE.items():
    (DOCS / name).write_text(make(old(name)), encoding="utf-8")
