"""What stays the same from version to version: docs/compatibility.md says what that is."""
