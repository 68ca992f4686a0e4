"""Images as PNG: one at a time for the report, and pairs on one sheet for a README."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image, ImageDraw, ImageFont


def data_uri(image: np.ndarray) -> str:
    return "data:image/png;base64," + base64.b64encode(_png(Image.fromarray(image))).decode()


def sheet(
    true: np.ndarray,
    recovered: np.ndarray,
    captions: list[str],
    *,
    columns: int = 10,
    zoom: int = 3,
) -> bytes:
    """Pairs of images, the true one above the recovered one, a caption under each pair, as PNG."""
    side, gap, text = zoom * true.shape[1], 6, 16
    width = zoom * true.shape[2]
    rows = -(-len(true) // columns)
    label = 76
    page = Image.new(
        "RGB",
        (label + columns * (width + gap) + gap, rows * (2 * side + text + 3 * gap) + gap),
        "white",
    )
    draw = ImageDraw.Draw(page)
    font = ImageFont.load_default(11)
    for k in range(len(true)):
        x = label + gap + (k % columns) * (width + gap)
        y = gap + (k // columns) * (2 * side + text + 3 * gap)
        for offset, image in ((0, true[k]), (side + 2, recovered[k])):
            page.paste(
                Image.fromarray(image).resize((width, side), Image.Resampling.NEAREST),
                (x, y + offset),
            )
        draw.text(
            (x + width // 2, y + 2 * side + 4), captions[k], fill="#555555", font=font, anchor="ma"
        )
        if k % columns == 0:
            draw.text(
                (label - 4, y + side // 2), "training", fill="#333333", font=font, anchor="rm"
            )
            draw.text(
                (label - 4, y + side + side // 2),
                "recovered",
                fill="#333333",
                font=font,
                anchor="rm",
            )
    return _png(page)


def _png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format="PNG", optimize=True)
    return stream.getvalue()
