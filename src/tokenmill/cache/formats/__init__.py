"""How one token's K or V row is stored.

A format is one file and one line here. It says what a row costs, allocates one layer's rows, writes rows by slot, and
reads them by range or by slot; a kernel asks for no more than that.
"""

FORMATS = {"dense": "tokenmill.cache.formats.dense:Dense"}
