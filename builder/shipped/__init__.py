"""The files of a project that come with this program: what they are, which a project gets, and what it did to them."""
