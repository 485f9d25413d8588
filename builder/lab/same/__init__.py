"""Two images are compared by the answers that they give: forced texts, and questions with a checkable answer."""
