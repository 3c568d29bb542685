"""Mean and standard deviation per channel of the CIFAR-10 training set, as published, in pixel units (0..255)."""

PIXEL_MEAN = (0.4914 * 255, 0.4822 * 255, 0.4465 * 255)
PIXEL_STD = (0.2470 * 255, 0.2435 * 255, 0.2616 * 255)
