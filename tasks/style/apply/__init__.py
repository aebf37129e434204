"""An image optimised, the time that methods take, and how good stylized pictures are."""
