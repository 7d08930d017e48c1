"""`tokenmill cache`: the group of verbs for what lies in the cache folder."""

from tokenmill.cli.parser.command import VerbGroup

command = VerbGroup(name="cache", help="What lies in the cache folder.", no_args_is_help=False, rich_markup_mode=None)
