"""Define the colours of all curves. A page that draws its own curves needs no matplotlib, so this module has none."""

# Okabe and Ito, "Color Universal Design", 2008, without their yellow, which is faint on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
