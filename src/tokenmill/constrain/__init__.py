"""Constraints: which tokens may come next so that a text fits a JSON schema, a regular expression or a grammar.

llguidance does the work. A constraint is made once, when a request is admitted; each sequence has a matcher of it.
"""
