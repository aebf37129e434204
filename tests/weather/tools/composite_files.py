"""Files of rain composites in the layouts of their providers, each written from its own definition."""

import gzip
from datetime import datetime, timedelta

import h5py
import numpy as np

TIME = datetime(2021, 7, 14, 6, 20)


def odim(path, raw, quantity, *, what=(), data=(), how=(), where=(), scale=2000.0, inner=False, time=TIME):
    """An ODIM file; `inner`: its place stands at the data set, not at the top."""
    with h5py.File(path, "w") as file:
        file.create_group("what").attrs.update(
            {"date": np.bytes_(f"{time:%Y%m%d}"), "time": np.bytes_(f"{time:%H%M%S}")}
        )
        file["dataset1/data1/data"] = raw
        file.create_group("dataset1/what").attrs.update(dict(what))
        file.create_group("dataset1/data1/what").attrs.update({"quantity": np.bytes_(quantity), **dict(data)})
        if how:
            file.create_group("dataset1/data1/how").attrs.update(dict(how))
        place = file.create_group("dataset1/where" if inner else "where").attrs
        place.update({"projdef": np.bytes_("+proj=utm +zone=33"), "xscale": scale, "yscale": scale, **dict(where)})
    return path


def knmi(path, raw, parameter="ACCUMULATED_PRECIPITATION_[MM]", formula="GEO=0.01*PV+0.0", minutes=5, time=TIME):
    with h5py.File(path, "w") as file:
        place = {"geo_pixel_size_x": np.float32([1.0]), "geo_pixel_size_y": np.float32([-1.0])}
        place |= {"geo_column_offset": np.float32([0.0]), "geo_row_offset": np.float32([3650.0])}
        place |= {"geo_number_rows": np.int32([raw.shape[0]]), "geo_number_columns": np.int32([raw.shape[1]])}
        place |= {"geo_dim_pixel": np.bytes_("KM,KM")}
        file.create_group("geographic").attrs.update(place)
        projection = "+proj=stere +lat_0=90 +lon_0=0.0 +lat_ts=60.0 +a=6378.137 +b=6356.752 +x_0=0 +y_0=0"
        file.create_group("geographic/map_projection").attrs["projection_proj4_params"] = np.bytes_(projection)
        file["image1/image_data"] = raw
        file["image1"].attrs["image_geo_parameter"] = np.bytes_(parameter)
        limits = {"calibration_missing_data": np.int32([65535]), "calibration_out_of_image": np.int32([65534])}
        file.create_group("image1/calibration").attrs.update(limits | {"calibration_formulas": np.bytes_(formula)})
        times = {"start": time - timedelta(minutes=minutes), "end": time}
        said = {f"product_datetime_{k}": np.bytes_(f"{v:%d-%b-%Y;%H:%M:%S.000}".upper()) for k, v in times.items()}
        file.create_group("overview").attrs.update(said)
    return path


def knmi_today(path, raw, parameter="PRECIP_[MM]", time=TIME, minutes=5):
    """KNMI's nl_rdr_data_rtcor_5m as it is in 2026: rain beside its quality, and the earth's radius in metres."""
    knmi(path, raw, parameter, "GEO=0.010000*PV+0.000000", minutes, time)
    with h5py.File(path, "r+") as file:
        place = {"geo_pixel_size_x": np.float32([1.0000035]), "geo_pixel_size_y": np.float32([-1.0000048])}
        file["geographic"].attrs.update(place)
        projection = "+proj=stere +lat_0=90 +lon_0=0 +lat_ts=60 +a=6378137 +b=6356752 +x_0=0 +y_0=0 +units=km"
        file["geographic/map_projection"].attrs["projection_proj4_params"] = np.bytes_(projection)
        limits = {"calibration_missing_data": np.int32([65534]), "calibration_out_of_image": np.int32([65535])}
        file["image1/calibration"].attrs.update(limits)
        file["image2/image_data"] = np.zeros(raw.shape, np.uint8)
        file["image2"].attrs["image_geo_parameter"] = np.bytes_("QUALITY_[-]")
    return path


def bom(path, raw, pixel=0.5, north=True, minutes=10, time=TIME):
    with h5py.File(path, "w") as file:
        file["precipitation"] = raw
        attributes = {"scale_factor": [0.05], "add_offset": [0.0], "_FillValue": np.int16([-32768])}
        file["precipitation"].attrs.update(attributes)
        seconds = int((time - datetime(1970, 1, 1)).total_seconds())
        file["start_time"], file["valid_time"] = seconds - 60 * minutes, seconds
        for name in ("start_time", "valid_time"):
            file[name].attrs["units"] = np.bytes_("seconds since 1970-01-01 00:00:00 UTC")
        file["precipitation"].attrs["units"] = np.bytes_("kg m-2")
        height, width = raw.shape
        file["x"] = np.float32(-10 + pixel * (np.arange(width) + 0.5))
        file["y"] = np.float32(20 - pixel * (np.arange(height) + 0.5))[:: 1 if north else -1]
        for name in ("x", "y"):
            file[name].attrs["units"] = np.bytes_("km")
        said = {"standard_parallel": [-18.0, -36.0], "longitude_of_central_meridian": [144.75]}
        said |= {
            "latitude_of_projection_origin": [-37.85],
            "semi_major_axis": [6378137.0],
            "inverse_flattening": [298.25],
        }
        said["grid_mapping_name"] = np.bytes_("albers_conical_equal_area")
        file.create_dataset("proj", data=np.int8(0)).attrs.update(said)
    return path


def fmi(path, levels, parameter="CorrectedReflectivity", across=999.674053, down=999.62859, time=TIME):
    lines = ["# composite_area FIN", f"# obstime {time:%Y%m%d%H%M}", f"# param {parameter}", "# missingval 255"]
    lines += [f"# metersperpixel_x {across}", f"# metersperpixel_y {down}", "# projection radar {"]
    lines += ["# type stereographic", "# centrallongitude 25", "# centrallatitude 90", "# truelatitude 60"]
    lines += ["# bottomleft 18.600000 57.930000", "# topright 34.903000 69.005000", "# }"]
    height, width = levels.shape
    header = "\n".join(["P5", *lines, f"{width} {height}", "255", ""])
    data = header.encode() + levels.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def crr(path, raw, time=TIME):
    with h5py.File(path, "w") as file:
        file.attrs["nominal_product_time"] = np.bytes_(f"{time:%Y-%m-%dT%H:%M:%SZ}")
        file.attrs["gdal_projection"] = np.bytes_("+proj=geos +h=35785863.0")
        file.attrs["gdal_geotransform_table"] = np.array([-3e6, 3000, 0, 5e6, 0, -3000], np.float32)
        file["crr_intensity"] = raw
        attributes = {
            "scale_factor": np.float32([0.1]),
            "add_offset": np.float32([0]),
            "_FillValue": np.uint16([65535]),
        }
        file["crr_intensity"].attrs.update(attributes)
    return path
