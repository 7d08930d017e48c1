"""Structural tags in xgrammar's form: a tree of formats becomes one grammar in Lark."""
