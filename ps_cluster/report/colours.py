"""Define the colours of all curves. Imports no matplotlib, because a page that draws its own curves needs none."""

# Okabe and Ito, "Color Universal Design", 2008, without their yellow, which is faint on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
