"""The evidence of numbered images: records of runs, their files, what they belong to, and the standing they give."""
