"""What other programs call things: lists of their commands, options, fields and calls, and what each is here.

The lists say what the others have; whether tokenmill takes a name is found in its parser, its bodies and its classes.
"""
