"""`tokenmill eval`: the group of verbs that say how good a model is."""

from tokenmill.cli.parser.command import VerbGroup

command = VerbGroup(name="eval", help="How good a model is.", no_args_is_help=False, rich_markup_mode=None)
