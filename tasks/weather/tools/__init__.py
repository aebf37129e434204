"""Tools that no table needs: rain composites of weather services, and exports of forecasts."""
