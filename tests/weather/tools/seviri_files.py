"""Makes small files of SEVIRI's native format: header, lines and trailer as EUMETSAT's archive writes them."""

from datetime import datetime

import numpy as np

STEP = 3.00040316582  # km, of the grid below the satellite
GAIN, OFFSET = 0.2, -10.2
TEXTS = {
    "SelectedBandIDs": "XXXXXXXXXXX-",
    "NumberLinesHRV": "0",
    "NumberColumnsHRV": "0",
}


def native(path, counts, south, east, time=datetime(2018, 8, 24, 18), rapid=False, bands=TEXTS["SelectedBandIDs"]):
    """Write a region of interest.

    Args:
        path: its name has to be one of the archive's.
        counts: of 10 bits, (11, lines, columns): the first line in the south and the first column in the east.
        south: number of the first line, from 1 in the south.
        east: number of the first column, from 1 in the east; there are a multiple of 4.
        time: when the scan begins.
        rapid: whether it is one of every five minutes.
        bands: X for each channel that is in the file.
    """
    from satpy.readers import seviri_l1b_native_hdr as records
    from satpy.readers.core.eum import time_cds_short

    channels, lines, columns = counts.shape
    assert channels == 11 and columns % 4 == 0
    header = np.zeros(1, records.get_native_header(True))
    main, second = header["15_MAIN_PRODUCT_HEADER"], header["15_SECONDARY_PRODUCT_HEADER"]
    main["FormatName"] = (b"FormatName                  : ", b"NATIVE\n")
    texts = TEXTS | {
        "SelectedBandIDs": bands,
        "SouthLineSelectedRectangle": south,
        "NorthLineSelectedRectangle": south + lines - 1,
        "EastColumnSelectedRectangle": east,
        "WestColumnSelectedRectangle": east + columns - 1,
        "NumberLinesVISIR": lines,
        "NumberColumnsVISIR": columns,
    }
    for name, value in texts.items():
        second[name] = (name.encode(), str(value).encode())
    data = header["15_DATA_HEADER"]
    data["SatelliteStatus"]["SatelliteDefinition"]["SatelliteId"] = 324
    days, milliseconds = since_1958(time)
    planned = data["ImageAcquisition"]["PlannedAcquisitionTime"]
    for place, minutes in enumerate((0, 12, 15)):
        planned[planned.dtype.names[place]] = (days, milliseconds + minutes * 60_000, 0, 0)
    earth = data["GeometricProcessing"]["EarthModel"]
    earth["TypeOfEarthModel"], earth["EquatorialRadius"] = 2, 6378.169
    earth["NorthPolarRadius"] = earth["SouthPolarRadius"] = 6356.5838
    grid = data["ImageDescription"]["ReferenceGridVIS_IR"]
    grid["NumberOfLines"] = grid["NumberOfColumns"] = 3712
    grid["LineDirGridStep"] = grid["ColumnDirGridStep"] = STEP
    grid["GridOrigin"] = 2
    data["ImageDescription"]["Level15ImageProduction"]["PlannedChanProcessing"] = 2
    calibration = data["RadiometricProcessing"]["Level15ImageCalibration"]
    calibration["CalSlope"], calibration["CalOffset"] = GAIN, OFFSET
    packets = np.dtype([("header", records.GSDTRecords.gp_pk_header), ("second", records.GSDTRecords.gp_pk_sh1)])
    line = [("packet", packets), ("version", "u1"), ("satellite", "u2"), ("time", ("u2", 5)), ("number", "u4")]
    line += [
        ("channel", "u1"),
        ("acquired", time_cds_short),
        ("quality", ("u1", 3)),
        ("data", ("u1", columns * 5 // 4)),
    ]
    body = np.zeros(lines, np.dtype([("visir", (np.dtype(line), 11))]).newbyteorder(">"))
    body["visir"]["data"] = packed(counts.transpose(1, 0, 2))
    body["visir"]["acquired"] = np.array((days, milliseconds), body["visir"]["acquired"].dtype)
    trailer = np.zeros(1, records.native_trailer)
    summary = trailer["15TRAILER"]["ImageProductionStats"]["ActualScanningSummary"]
    summary["ForwardScanStart"], summary["ReducedScan"] = (days, milliseconds), rapid
    path.write_bytes(header.tobytes() + body.tobytes() + trailer.tobytes())
    return path


def since_1958(time):
    """Days and milliseconds of a day, as the agencies count."""
    passed = time - datetime(1958, 1, 1)
    return passed.days, passed.seconds * 1000


def packed(counts):
    """Numbers of 10 bits in the last axis, one after the other."""
    bits = (counts[..., None].astype(np.uint16) >> np.arange(9, -1, -1, dtype=np.uint16)) & 1
    return np.packbits(bits.reshape(*counts.shape[:-1], -1).astype(np.uint8), axis=-1)


def pixel_of(longitude, latitude):
    """Line from the south and column from the east, from 1, of degrees: CGMS's normalised geostationary projection.

    Source: CGMS 03, *LRIT/HRIT Global Specification*, section 4.4.3.2; the satellite stands over 0 degrees.
    """
    longitude, latitude = np.radians(longitude), np.radians(latitude)
    geocentric = np.arctan(0.993243 * np.tan(latitude))
    radius = 6356.5838 / np.sqrt(1 - 0.00675701 * np.cos(geocentric) ** 2)
    r1 = 42164 - radius * np.cos(geocentric) * np.cos(longitude)
    r2 = -radius * np.cos(geocentric) * np.sin(longitude)
    r3 = radius * np.sin(geocentric)
    angle = STEP / 35785.831
    across, up = np.arctan(-r2 / r1), np.arcsin(r3 / np.sqrt(r1**2 + r2**2 + r3**2))
    return 1856 + up / angle, 1856 - across / angle
