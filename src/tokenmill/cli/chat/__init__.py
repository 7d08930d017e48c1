"""`tokenmill chat`: a conversation on one session. Only verb.py knows the parser."""
