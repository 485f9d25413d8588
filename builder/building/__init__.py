"""One build, from the plan to the finished image, before it has a number."""
